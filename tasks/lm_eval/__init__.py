"""lm-eval's tasks as ours: found and checked, asked through our backends, judged by lm-eval itself."""
