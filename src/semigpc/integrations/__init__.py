"""SemiGPC in other training code: one file for each library, which is imported only with that file.

``usb`` adds FixMatch and SimMatch with the refiner to ``semilearn``; ``lightning`` is a callback. A
loop of your own needs neither: :class:`semigpc.refiners.GaussianProcessRefiner` has ``probs`` and
``remember``. See ``docs/integrate.md``.
"""
