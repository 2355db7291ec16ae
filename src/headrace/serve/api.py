"""What clients may ask of the server, and the JSON that it answers with: OpenAI's interface for completions."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MOST_TOKENS = 4096
"""Most tokens that one completion may have."""
MOST_CHOICES = 16
"""Most texts that one request may ask for, all prompts together."""
MOST_ALTERNATIVES = 20
"""Most tokens whose log-probabilities are returned for each place of a text."""

Text = Annotated[str, Field(strict=True)]
Id = Annotated[int, Field(strict=True, ge=0)]


class ApiError(Exception):
    """A request that cannot be answered; the message goes to the client, in the form that OpenAI's clients read."""

    def __init__(self, status: HTTPStatus, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "server_error" if status >= 500 else "invalid_request_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class StreamOptions(BaseModel):
    """How a streamed completion ends."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False
    """Whether one more event counts the tokens."""


class CompletionRequest(BaseModel):
    """The body of POST /v1/completions. What this server does not do is refused, never ignored."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str | None = None
    prompt: Text | list[Text] | list[Id] | list[list[Id]] = ""
    """A text, several, or the same as tokens."""
    max_tokens: int = Field(16, ge=0, le=MOST_TOKENS)
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    """Number of likeliest tokens to draw from; 0: all. An addition to OpenAI's interface, as in vLLM."""
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(None, ge=0, le=MOST_ALTERNATIVES)
    """Number of likeliest tokens to return at each place, with log-probabilities."""
    echo: bool = False
    """Whether the text begins with the prompt, and the log-probabilities with those of the prompt."""
    stop: str | list[str] | None = None
    seed: int | None = Field(None, ge=0, lt=2**63)
    user: str | None = None
    """A name for the caller's own use; not looked at."""
    best_of: Literal[None, 1] = None
    suffix: Literal[None, ""] = None
    presence_penalty: Literal[None, 0] = None
    frequency_penalty: Literal[None, 0] = None
    logit_bias: dict[str, float] | None = Field(None, max_length=0)

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts as a list, whichever way they were given."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt  # type: ignore[return-value]

    @property
    def stops(self) -> list[str]:
        """The texts that end a completion."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in given if text]


def parse_completion(body: bytes) -> CompletionRequest:
    """Read the body of a request; what is wrong with it is an error that names the field."""
    try:
        request = CompletionRequest.model_validate_json(body)
    except ValidationError as problem:
        raise _invalid(problem) from None
    num_choices = len(request.prompts) * request.n
    if not 1 <= num_choices <= MOST_CHOICES:
        message = f"a request may ask for 1 to {MOST_CHOICES} texts (prompts x n); this one asks for {num_choices}"
        raise ApiError(HTTPStatus.BAD_REQUEST, message, param="n")
    return request


def _invalid(problem: ValidationError) -> ApiError:
    first = problem.errors(include_url=False, include_input=False)[0]
    field = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "json_invalid":
        message = f"the body is not valid JSON ({first['ctx']['error']})"
    elif first["type"] == "extra_forbidden":
        message = f"{field}: headrace serve does not know this field"
    else:
        message = f"{field}: {first['msg']}" if field else f"the body must be a JSON object ({first['msg']})"
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=field)


def completion(head: dict[str, Any], choices: list[dict[str, Any]], usage: dict[str, int] | None) -> dict[str, Any]:
    """Return the JSON of a whole completion, or of one event of a stream."""
    return {**head, "object": "text_completion", "choices": choices, **({"usage": usage} if usage else {})}


def choice(index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None) -> dict[str, Any]:
    """Return the JSON of one text, or of what was added to it."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def usage(num_prompt: int, num_completion: int) -> dict[str, int]:
    """Return the JSON that counts tokens."""
    total = num_prompt + num_completion
    return {"prompt_tokens": num_prompt, "completion_tokens": num_completion, "total_tokens": total}


def model_card(name: str, created: int, context: int) -> dict[str, Any]:
    """Return the JSON of a model in the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "headrace", "max_model_len": context}
