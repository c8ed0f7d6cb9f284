"""One folder an operation: its definition in torch and its fast twins. Knows packed matrices, no model."""
