"""What the machine does: GPUs, CPU, memory, disk and network, and the GPU energy of each episode."""
