"""Scenes for deblurring: textured surfaces that move before a simulated camera."""

from ppln.datasets.synthetic.scenes.scenes import Sample, Scenes

__all__ = ["Sample", "Scenes"]
