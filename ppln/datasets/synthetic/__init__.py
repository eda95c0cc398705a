"""Data made by the package itself: scenes for deblurring, drives for steering, people for pose."""
