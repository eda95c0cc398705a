"""Training, evaluation, checkpoints and export; the only room that knows Lightning Fabric."""
