"""Scenes for deblurring: textured surfaces that move before a simulated camera."""

from ppln.datasets.synthetic.scenes.scenes import Scenes

__all__ = ["Scenes"]
