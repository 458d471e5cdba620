"""The embedded models: tiny Kimi-shaped and GLM-shaped transformers, their tokenizer and training."""
