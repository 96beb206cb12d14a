"""The token file of an episode: read completely, up to a torn end, or refused."""

from __future__ import annotations

import zlib

from runner.store.token_file import HEADER, decode_token_file, encode_token_file
from runner.types.sequences import MAX_TOKEN_ID, TokenSequence, pack_sequences
from tests.fuzz.oracles import outcome

TOKENS = (HEADER, b"\0\0\0\x05", b"\x81\xaaprompt_ids\x91\x01", b"\x81\xa5label\xa9discarded", b"\xaecompletion_ids")


def check(data: bytes) -> None:
    # as a file, and as the content of a record, which random bytes are no compressed data of
    _check(data)
    _check(encode_token_file([zlib.compress(data)]))


def _check(content: bytes) -> None:
    found = outcome(lambda: decode_token_file(content), ValueError)
    if not isinstance(found, list):
        return
    for record in found:
        _check_sequences(record)
    assert decode_token_file(encode_token_file(map(pack_sequences, found))) == found
    shorter = outcome(lambda: decode_token_file(content[:-1]), ValueError)
    assert isinstance(shorter, Exception) or shorter == found[: len(shorter)]


def _check_sequences(record: list[TokenSequence]) -> None:
    for each in record:
        assert all(0 <= id <= MAX_TOKEN_ID for id in each.prompt_ids + each.completion_ids)
        assert len(each.loss_mask) == len(each.prompt_ids) + len(each.completion_ids)
