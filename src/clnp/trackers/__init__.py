"""TensorBoard, MLflow and Weights & Biases."""
