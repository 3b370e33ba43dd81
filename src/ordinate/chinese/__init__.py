"""What the library says, in Chinese: each rule of a refusal by its English template."""
