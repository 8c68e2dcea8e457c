"""Where a run can be watched and compared while it goes on: TensorBoard, MLflow, W&B."""
