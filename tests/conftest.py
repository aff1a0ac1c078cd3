"""What every test shares."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.ci_guard"]

# The machine may be busy: how long an example takes is no finding. The same examples everywhere, so that a failure
# in CI is the failure at a desk.
settings.register_profile("eagle3", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("eagle3")
