"""The stages of a run, one module each, one signature: ``run(ctx) -> figures``.

A stage says what it needs first (``needs``), names what it leaves (``OUTPUTS``, paths inside the run directory),
picks up what a killed attempt left whole, and returns its figures. ``eagle3.work`` decides which ones still have to
run, measures them and writes their records; a stage never writes its own record.
"""
