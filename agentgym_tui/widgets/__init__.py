"""What the screens are made of: lists drawn line by line, which take only texts made safe."""
