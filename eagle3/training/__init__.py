"""How a draft is trained: speculators' model and trainer, with what a CPU, an exact resume and honest figures need around them.

Everything here but ``samples`` and ``checkpoint``'s names imports torch; only stages import it, inside ``run``.
"""
