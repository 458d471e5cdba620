"""SGLang on a CPU without AMX: a plugin, a launcher and what they need."""
