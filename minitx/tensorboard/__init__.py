"""What TensorBoard sees of us. No torch and no lightning in here, so that TensorBoard stays quick to start."""
