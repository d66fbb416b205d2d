"""What a worker of Ray does with one partition. It imports little, since every worker has to."""

import pickle
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from semigpc.data.dataset import DataError
from semigpc.threads import hold

Task = Callable[[int], Any]  # from the number of a partition to what is to be known of it


def work_on(item: dict[str, Any], shared: list[Any]) -> dict[str, Any]:
    """Do a task for one partition. What the user can mend is answered, not raised, so that it arrives as it was said.

    Args:
        item: the ``number`` of the partition. shared: the reference of the task.

    Returns:
        The number, what the task said (pickled), what went wrong, whether that was the data's fault, and the time it took.
    """
    number, answer, failed, refused = int(item["number"]), None, "", False
    task, began = _held(shared[0]), time.process_time()
    try:
        answer = task(number)
    except DataError as error:
        failed, refused = str(error), True
    except OSError as error:
        failed = f"Partition {number + 1} could not be read or written: {error}. Mend that; the same command goes on."
    spent = time.process_time() - began
    return {"number": number, "answer": pickle.dumps(answer), "failed": failed, "refused": refused, "core_seconds": spent}


@lru_cache(maxsize=1)
def _held(reference: Any) -> Task:
    """The task with all it needs, the model among it, fetched once; on one core, whatever the machine has."""
    import ray

    hold(1)
    task: Task = ray.get(reference)
    return task
