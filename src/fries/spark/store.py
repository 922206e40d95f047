"""Spark's state store as the runtime uses it: a map state of numbered values.

Every access of Spark's Python API is a round trip to the JVM, and a key group needs many at
once. So requests are written together and their answers read afterwards. That cannot block
for ever: requests to read are a few bytes, answers to writes are a few bytes, and a window of
either fits into the buffers between the two processes. It speaks Spark's own protocol over
Spark's own connection, which is no public interface; the version of Spark is pinned for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyspark.sql.streaming.proto.StateMessage_pb2 as pb
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

WINDOW: Final = 64
"""Requests that are under way at once."""
NAME: Final = "buckets"
_HEAD: Final = struct.Struct("!ii")
"""Version of the message format, and length of the message."""


class MapStateStore:
    """The values of the key group that Spark works on: a :class:`fries.runtime.state.Store`."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._state: MapState = handle.getMapState(NAME, "number long", "value binary")
        client: Any = self._state._mapStateClient
        self._schemas = client.user_key_schema, client.value_schema
        self._client: Any = client._stateful_processor_api_client

    def get_many(self, numbers: Sequence[int]) -> list[bytes | None]:
        """Some values; ``None`` where there is none."""
        calls = (
            pb.MapStateCall(stateName=NAME, getValue=pb.GetValue(userKey=self._key(number)))
            for number in numbers
        )
        return [self._client._deserialize_from_bytes(v)[0] if v else None for v in self._ask(calls)]

    def put_many(self, values: Mapping[int, bytes | None]) -> None:
        """Replace some values; ``None`` removes one."""
        self._ask(self._put(number, value) for number, value in values.items())

    def _put(self, number: int, value: bytes | None) -> pb.MapStateCall:
        key = self._key(number)
        if value is None:
            return pb.MapStateCall(stateName=NAME, removeKey=pb.RemoveKey(userKey=key))
        data = self._client._serialize_to_bytes(self._schemas[1], (value,))
        return pb.MapStateCall(stateName=NAME, updateValue=pb.UpdateValue(userKey=key, value=data))

    def _key(self, number: int) -> bytes:
        data: bytes = self._client._serialize_to_bytes(self._schemas[0], (number,))
        return data

    def _ask(self, calls: Iterable[pb.MapStateCall]) -> list[bytes]:
        """Send requests, a window at a time, and read their answers."""
        answers: list[bytes] = []
        under_way = 0
        for call in calls:
            request = pb.StateRequest(
                stateVariableRequest=pb.StateVariableRequest(mapStateCall=call)
            ).SerializeToString()
            self._client.sockfile.write(_HEAD.pack(0, len(request)) + request)
            under_way += 1
            if under_way == WINDOW:
                answers += self._read(under_way)
                under_way = 0
        return answers + self._read(under_way)

    def _read(self, count: int) -> list[bytes]:
        self._client.sockfile.flush()
        responses = [self._client._receive_proto_message() for _ in range(count)]
        for status, message, _ in responses:
            if status:
                raise PySparkRuntimeError(f"the state store failed: {message}")
        return [value for _, _, value in responses]
