"""What a conversation leaves behind in a model: cells that grow and states that are replaced."""
