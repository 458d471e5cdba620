"""State-space kernels: imported by sglang 0.5.23 on a CPU, used by no model served here."""

from . import missing

chunk_gated_delta_rule_cpu = missing("mamba.chunk_gated_delta_rule_cpu")
causal_conv1d_fn_cpu = missing("mamba.causal_conv1d_fn_cpu")
causal_conv1d_update_cpu = missing("mamba.causal_conv1d_update_cpu")
