"""What runs in the container without any environment of ours: standard library only, Python 3.8 or newer.

It claims, starts, watches, stops and describes runs. It imports nothing but itself, so that it can be packed as
one zipapp and started by whatever ``python3`` the container has.
"""
