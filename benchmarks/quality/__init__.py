"""How good the drafts are, served: a longer training against the pilot's draft and an untrained one."""
