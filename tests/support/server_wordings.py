"""Real words in which model servers refuse requests: a part of one, a key, a model, a content, a conversation's length.

Each wording is the server, its HTTP status and its message.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Part: TypeAlias = Literal[
    "tools",
    "stream",
    "stream with tools",
    "stream_options",
    "temperature",
    "max_tokens",
    "old max_tokens",
    "system",
    "reasoning",
    "missing reasoning of calls",
    "missing reasoning",
]
"""What a server may refuse. ``old max_tokens`` has a newer name; the last two must come back with the turns that the
server wrote, those with tool calls or all."""


class Wording(NamedTuple):
    server: str
    status: int
    text: str


PARTS: dict[Part, list[Wording]] = {
    "tools": [
        Wording("llama.cpp", 500, "tools param requires --jinja flag"),
        Wording("llama.cpp, old", 500, "Unsupported param: tools"),
        Wording("OpenAI", 400, "Unsupported parameter: 'tools' is not supported with this model."),
        Wording("Azure", 400, "Unrecognized request argument supplied: tools"),
        Wording("Groq", 400, "`tool calling` is not supported with this model"),
        Wording("LM Studio", 400, "Tool calling is not supported for this model"),
        Wording("Mistral", 400, "Function calling is not enabled for this model"),
        Wording("Gemini", 400, "Function calling is not enabled for models/gemma-3-27b-it"),
        Wording(
            "OpenRouter", 404, "No endpoints found that support tool use. To learn more, visit: https://or.ai/docs"
        ),
        Wording("Ollama", 400, "registry.ollama.ai/library/gemma3:4b does not support tools"),
        Wording("DeepSeek", 400, "deepseek-reasoner does not support Function Calling"),
        Wording("vLLM", 400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        Wording("pydantic", 422, "tools: Extra inputs are not permitted"),
    ],
    "stream": [
        Wording("OpenAI", 400, "Unsupported value: 'stream' does not support true with this model."),
        Wording("OpenAI, organization", 400, "Your organization must be verified to stream this model."),
        Wording("gateway", 400, "Streaming is not supported for this model"),
    ],
    "stream with tools": [
        Wording("gateway", 400, "Streaming is not supported when using tools"),
        Wording("llama.cpp", 500, "Cannot use tools with stream"),
        Wording("Cerebras", 400, "Function calling with streaming is not supported"),
    ],
    "stream_options": [
        Wording("Mistral", 422, "stream_options.include_usage: Extra inputs are not permitted"),
        Wording("Azure", 400, "Unrecognized request argument supplied: stream_options"),
        Wording("OpenAI", 400, "Unknown parameter: 'stream_options'."),
        Wording("Gemini", 400, 'Invalid JSON payload received. Unknown name "stream_options": Cannot find field.'),
        Wording("schema", 400, "Additional properties are not allowed ('stream_options' was unexpected)"),
    ],
    "temperature": [
        Wording("OpenAI", 400, "Unsupported parameter: 'temperature' is not supported with this model."),
        Wording(
            "OpenAI, value",
            400,
            "Unsupported value: 'temperature' does not support 0.7 with this model. Only the default (1) is supported.",
        ),
        Wording("Kimi", 400, "invalid temperature: only 1 is allowed for this model"),
        Wording("Anthropic", 400, "`temperature` is deprecated for this model."),
    ],
    "max_tokens": [
        Wording("pydantic", 422, "max_tokens: Extra inputs are not permitted"),
        Wording("gateway", 400, "Unknown parameter: 'max_tokens'."),
    ],
    "old max_tokens": [
        Wording(
            "OpenAI",
            400,
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
            "instead.",
        )
    ],
    "system": [
        Wording("vLLM, Gemma", 400, "System role not supported"),
        Wording("llama.cpp, Gemma", 500, "Jinja Exception: System role not supported"),
        Wording("Gemini", 400, "Developer instruction is not enabled for models/gemma-3-27b-it"),
        Wording("OpenAI", 400, "Unsupported value: 'messages[0].role' does not support 'system' with this model."),
        Wording("vLLM, Mistral", 400, "Only user, assistant and tool roles are supported, got system."),
        Wording("vLLM, Mistral 7B", 400, "Conversation roles must alternate user/assistant/user/assistant/..."),
    ],
    "reasoning": [
        Wording(
            "Groq",
            400,
            "'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property "
            "'reasoning_content' is unsupported)]",
        ),
        Wording("Mistral", 422, "messages.2.assistant.reasoning_content: Extra inputs are not permitted"),
        Wording(
            "DeepSeek, old",
            400,
            "The reasoning_content is an intermediate result for display purposes only and will not be included in the "
            "context for inference. Please remove the reasoning_content from your message to reduce network traffic.",
        ),
        Wording("pydantic", 422, "body.messages.2.assistant.reasoning_content: Unexpected field"),
    ],
    "missing reasoning of calls": [
        Wording(
            "Kimi",
            400,
            "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        )
    ],
    "missing reasoning": [
        Wording("DeepSeek", 400, "The `reasoning_content` in the thinking mode must be passed back to the API."),
        Wording("DeepSeek V3.2", 400, "Missing `reasoning_content` field in the assistant message at message index 2."),
        Wording(
            "Anthropic",
            400,
            "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`. When `thinking` "
            "is enabled, a final `assistant` message must start with a thinking block.",
        ),
    ],
}

ANONYMOUS = [
    Wording("proxy", 400, "Bad Request"),
    Wording("OpenRouter", 400, "Provider returned error"),
    Wording("Gemini", 400, "Request contains an invalid argument."),
    Wording("gateway", 400, ""),
    Wording("FastAPI", 422, "Unprocessable Entity"),
    Wording("llama.cpp", 500, "Failed to process the request"),
]

WRONG_KEYS = [
    Wording("DashScope", 400, "Access denied, please make sure your account is in good standing."),
    Wording("a proxy", 400, "Invalid bearer token"),
    Wording("a gateway", 400, "The token is invalid"),
    Wording("a gateway, later", 400, "token expired"),
    Wording("a router", 400, "Missing Authorization header"),
    Wording("OpenAI", 401, "Incorrect API key provided: sk-abc***xyz. You can find your API key at https://o.ai/keys."),
    Wording("Gemini", 400, "API key not valid. Please pass a valid API key."),
    Wording("Gemini, expired", 400, "API key expired. Please renew the API key."),
    Wording("xAI", 400, "Incorrect API key provided: ab***yz. You can obtain an API key from https://console.x.ai."),
    Wording("Anthropic", 401, "invalid x-api-key"),
    Wording("DeepSeek", 401, "Authentication Fails, Your api key: ****2345 is invalid"),
    Wording("DeepSeek, balance", 402, "Insufficient Balance"),
    Wording("Mistral", 401, "Unauthorized"),
    Wording("Kimi", 401, "Invalid Authentication"),
    Wording("Cohere", 400, "invalid api token"),
    Wording("Hugging Face", 401, "Invalid credentials in Authorization header"),
    Wording("Hugging Face, user", 400, "Invalid username or password."),
    Wording("OpenRouter", 401, "No auth credentials found"),
    Wording("Azure", 400, "Access denied due to invalid subscription key or wrong API endpoint."),
    Wording("LiteLLM", 400, "Authentication Error, Invalid proxy server token passed."),
    Wording("DashScope", 400, "Invalid API-key provided."),
    Wording("Anthropic, balance", 400, "Your credit balance is too low to access the Anthropic API."),
    Wording("gateway", 403, "Forbidden"),
]
MODELS = [
    Wording("Groq, retired", 400, "The model `m` has been decommissioned and is no longer supported."),
    Wording("a reseller", 400, "unsupported model: m"),
    Wording("a pool", 400, "The requested model is not available"),
    Wording("OpenAI", 404, "The model `m` does not exist or you do not have access to it."),
    Wording("Ollama", 404, "model 'm' not found"),
    Wording("LM Studio", 404, "No models loaded. Please load a model in the developer page or use `lms load`."),
    Wording("Mistral", 400, "Invalid model: m"),
    Wording("DeepSeek", 400, "Model Not Exist"),
    Wording("Kimi", 404, "Not found the model m or Permission denied"),
    Wording("Gemini", 404, "models/m is not found for API version v1main, or is not supported for generateContent."),
    Wording("OpenRouter", 400, "m is not a valid model ID"),
    Wording("OpenRouter, none", 404, "No endpoints found for m."),
    Wording("Groq", 400, "The model `m` has been decommissioned and is no longer supported."),
    Wording("Together", 400, "Unable to access model m. Please visit https://t.ai/models to view the models."),
    Wording("Fireworks", 404, "Model not found, inaccessible, and/or not deployed"),
    Wording("LiteLLM", 400, "Invalid model name passed in model=m. Call `/v1/models` to view available models"),
    Wording("Azure", 404, "The API deployment for this resource does not exist."),
]
POLICIES = [
    Wording("Azure", 400, "The response was filtered due to the prompt triggering Azure's content management policy."),
    Wording("OpenAI", 400, "Invalid prompt: your prompt was flagged as potentially violating our usage policy."),
    Wording("OpenAI, safety", 400, "Your request was rejected as a result of our safety system."),
    Wording("DeepSeek", 400, "Content Exists Risk"),
    Wording("Kimi", 400, "The request was rejected because it was considered high risk"),
    Wording("DashScope", 400, "Input data may contain inappropriate content."),
    Wording("Gemini", 400, "The prompt was blocked: PROHIBITED_CONTENT"),
    Wording("Zhipu", 400, "系统检测到输入或生成内容可能包含不安全或敏感内容"),
]
CONTEXTS = [
    Wording("xAI", 400, "This model's maximum prompt length is {limit} but the request contains {given} tokens."),
    Wording("OpenAI, responses", 400, "Input tokens exceed the configured limit of {limit} tokens."),
    Wording("z.ai", 400, "Prompt exceeds max length"),
    Wording("Ollama, in part", 400, "prompt too long; exceeded max context length by 300 tokens"),
    Wording("Copilot", 400, "prompt token count of {given} exceeds the limit of {limit}"),
    Wording("TGI, inputs", 422, "`inputs` must have less than {limit} tokens. Given: {given}"),
    Wording("OpenAI", 400, "This model's maximum context length is {limit} tokens. Please reduce the length."),
    Wording(
        "vLLM",
        400,
        "This model's maximum context length is {limit} tokens. However, you requested {given} tokens ({given} in the "
        "messages, 0 in the completion). Please reduce the length of the messages or completion.",
    ),
    Wording(
        "vLLM, new",
        400,
        "This model's maximum context length is {limit} tokens. However, you requested 64 output tokens and your "
        "prompt contains at least {given} input tokens. Please reduce the length of the input prompt or the number of "
        "requested output tokens.",
    ),
    Wording("llama.cpp", 400, "request ({given} tokens) exceeds the available context size ({limit} tokens)"),
    Wording("llama.cpp, old", 500, "the request exceeds the available context size. try increasing the context size"),
    Wording(
        "LM Studio",
        400,
        "Trying to keep the first {given} tokens when context the overflows. However, the model is loaded with context "
        "length of only {limit} tokens, which is not enough.",
    ),
    Wording("Ollama", 400, "the input length exceeds the context length"),
    Wording(
        "SGLang",
        400,
        "Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a total of "
        "{given} tokens.",
    ),
    Wording(
        "SGLang, input", 400, "The input ({given} tokens) is longer than the model's context length ({limit} tokens)."
    ),
    Wording("Mistral", 400, "Prompt contains {given} tokens, too large for model with {limit} maximum context length"),
    Wording("Anthropic", 400, "prompt is too long: {given} tokens > {limit} maximum"),
    Wording("Gemini", 400, "The input token count ({given}) exceeds the maximum number of tokens allowed ({limit})."),
    Wording(
        "OpenRouter",
        400,
        "This endpoint's maximum context length is {limit} tokens. However, you requested about {given} tokens.",
    ),
    Wording("Groq", 413, "Please reduce the length of the messages or completion."),
    Wording("Kimi", 400, "Invalid request: Your request exceeded model token limit: {limit}"),
    Wording("xAI", 400, "This model's maximum prompt length is {limit} but the request contains {given} tokens."),
    Wording("TGI", 422, "Input validation error: `inputs` must have less than {limit} tokens. Given: {given}"),
    Wording("DashScope", 400, "Range of input length should be [1, {limit}]"),
    Wording(
        "TGI, sum", 422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {limit}. Given: {given}"
    ),
    Wording("Fireworks", 400, "The prompt is too long: {given}, model maximum context length: {limit}"),
    Wording("Bedrock", 400, "Input is too long for requested model."),
    Wording("Zhipu", 400, "Prompt exceeds max length"),
]
