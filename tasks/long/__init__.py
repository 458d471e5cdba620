"""Generated long contexts, to a million tokens and more: retrieval, tracking, counting, coreference."""
