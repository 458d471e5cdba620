"""KV scales from data: observe what a model caches, choose scales, measure what they do. Needs torch.

``settings``, ``report``, ``mixed``, ``delivery`` and ``overlay`` are without torch.
"""
