"""One call of ``do_it`` in every form in which it may come as text."""

TYPES = {"do_it": {"s": "string", "i": "integer"}}
KIMI = (
    "Let me see.<|tool_calls_section_begin|><|tool_call_begin|>functions.do_it:0<|tool_call_argument_begin|>"
    '{"s": "q", "i": 1}<|tool_call_end|><|tool_calls_section_end|>'
)
GLM = (
    "<tool_call>do_it\n<arg_key>s</arg_key>\n<arg_value>q</arg_value>\n<arg_key>i</arg_key>\n<arg_value>1</arg_value>\n"
    "</tool_call>"
)
PLAIN = '{"name": "do_it", "arguments": {"s": "q", "i": 1}}'
FORMS = [
    KIMI,
    GLM,
    GLM.replace("\n", ""),
    f"<tool_call>\n{PLAIN}\n</tool_call>",
    PLAIN,
    f"```json\n[{PLAIN}]\n```",
    PLAIN.replace("arguments", "parameters"),
]
