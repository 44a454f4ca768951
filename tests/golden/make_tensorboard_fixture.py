"""Writes tests/golden/tensorboard with TensorBoard's own writer, and reads event files back with its own reader.

    python3 -m venv v && v/bin/pip install tensorboard
    v/bin/python tests/golden/make_tensorboard_fixture.py                 # the fixture
    v/bin/python tests/golden/make_tensorboard_fixture.py RUN/tensorboard # what TensorBoard reads there
"""
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

TIME = 1794830617.25


def scalars(time, step, values):
    summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=t, simple_value=v) for t, v in values])
    return event_pb2.Event(wall_time=time, step=step, summary=summary)


def text(time, step, tag, value):
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, tensor_shape=shape, string_val=[value.encode()])
    plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
    one = summary_pb2.Summary.Value(tag=tag, tensor=tensor, metadata=summary_pb2.SummaryMetadata(plugin_data=plugin))
    return event_pb2.Event(wall_time=time, step=step, summary=summary_pb2.Summary(value=[one]))


def write():
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    events = [
        event_pb2.Event(wall_time=TIME, file_version="brain.Event:2"),
        event_pb2.Event(wall_time=TIME, step=13, session_log=start),
        text(TIME, 0, "configuration", "run a\n\n    seed: 42\n"),
        scalars(TIME, 0, [("eval/loss", 2.5), ("eval/accuracy", 0)]),
        scalars(TIME + 1, 1, [("train/loss", 2.25), ("train/learning_rate", 1e-5)]),
        scalars(TIME + 2, 300, [("train/tokens_total", 123456789.0)]),
        scalars(TIME + 3, 5000000000, [("x" * 200, -1.0)]),
    ]
    with open(Path(__file__).parent / "tensorboard/events.out.tfevents.fixture", "wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString(deterministic=True))
        writer.flush()


def read(folder):
    found = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    for tag in found.Tags()["scalars"]:
        points = [(p.step, round(p.value, 6)) for p in found.Scalars(tag)]
        print(f"{tag}: {len(points)} points, {points[0]} ... {points[-1]}")
    print("texts:", found.Tags()["tensors"])


if len(sys.argv) > 1:
    read(sys.argv[1])
else:
    write()
