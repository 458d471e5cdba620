"""Which of the facts that an SGLang server gives about itself do not bear on its answers."""

from collections.abc import Mapping

__all__ = ["IGNORED_FACTS"]

#: Facts of SGLang's /server_info and /model_info that never change an answer, by why they are ignored.
IGNORED_FACTS: Mapping[str, tuple[str, ...]] = {
    "where the server listens": (
        "host", "port", "nccl_port", "grpc_port", "dist_init_addr", "engine_info_bootstrap_port",
        "encoder_bootstrap_port", "disaggregation_bootstrap_port", "smg_http_sidecar_port",
        "gated_launch_port", "fastapi_root_path", "load_publish_endpoint", "weight_cache_socket",
    ),
    "names of pipes and instances": (
        "instance_id", "tokenizer_ipc_name", "scheduler_input_ipc_name", "detokenizer_ipc_name",
        "rpc_ipc_name", "metrics_ipc_name", "tokenizer_worker_ipc_name", "load_collector_ipc_name",
        "forward_pass_metrics_ipc_name", "forward_pass_metrics_worker_id", "decoupled_spec_ipc_config",
    ),
    "which device of its kind": ("base_gpu_id", "gpu_id_step", "numa_node"),
    "the name it goes by": ("served_model_name", "otlp_service_name"),
    "live state, and the command line, whose effects are facts of their own": (
        "internal_states", "startup_time", "launch_command", "kv_events",
    ),
    "sized by free memory": (
        "mem_fraction_static", "max_total_tokens", "max_total_num_tokens", "max_total_num_tokens_swa",
        "max_running_requests", "max_req_input_len", "max_req_len", "available_gpu_mem",
    ),
    "drawn at start-up; plans that sample give seeds": ("random_seed",),
    "secrets": (
        "api_key", "admin_api_key", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_keyfile_password",
        "watermark_key", "watermark_key_b",
    ),
    "logging, metrics and watchdogs": (
        "log_level", "log_level_http", "log_requests", "log_requests_level", "log_requests_format",
        "log_requests_target", "crash_dump_folder", "show_time_cost", "enable_metrics",
        "enable_metrics_for_all_schedulers", "enable_mfu_metrics", "export_metrics_to_file",
        "export_metrics_to_file_dir", "extra_metric_labels", "decode_log_interval", "enable_cache_report",
        "enable_trace", "otlp_traces_endpoint", "watchdog_timeout", "soft_watchdog_timeout", "stat_loggers",
        "enable_request_time_stats_logging", "kv_events_config", "download_dir", "file_storage_path",
    ),
}  # fmt: skip
