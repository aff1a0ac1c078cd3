"""What every test shares."""

pytest_plugins = ["tests.ci_guard"]
