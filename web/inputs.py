"""From a JSON body to validated intents: what the client may say, and no more. Contract 2.1 and 2.2."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from models.rules.charter import normalize_work_item_id
from models.rules.codes import Code
from models.rules.conflict import DeliveryMode
from models.rules.ids import MAX_BATCH
from models.rules.intents import CreateTask, ValidationPolicy
from models.rules.tasks import BODY_CHARACTERS_MAX, is_body
from models.rules.text import TitleFault, clean_title
from web.problems import Refusal


class TaskInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a task creation. Null is not absence: optional fields are left out."""

    title: str
    body: str = ""
    work_item_id: str | msgspec.UnsetType = msgspec.UNSET
    delivery_mode: str = DeliveryMode.RESULT.value
    validation_policy: str = ValidationPolicy.EVIDENCE.value


class BatchInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a batch."""

    tasks: Annotated[tuple[TaskInput, ...], msgspec.Meta(min_length=1, max_length=MAX_BATCH)]


task_decoder: Final = msgspec.json.Decoder(TaskInput)
batch_decoder: Final = msgspec.json.Decoder(BatchInput)


def create_task(given: TaskInput, *, at: str = "") -> CreateTask:
    """Return the intent of a task's creation; ``at`` is the JSON pointer of ``given`` in the body.

    Raises:
        Refusal: 422 with the pointer of the field that cannot be taken.
    """
    title = clean_title(given.title)
    if isinstance(title, TitleFault):
        raise Refusal(Code(title.value), pointer=f"{at}/title")
    if not is_body(given.body):
        raise Refusal(
            Code.BODY_INVALID,
            f"Send a body of at most {BODY_CHARACTERS_MAX} characters without NUL.",
            pointer=f"{at}/body",
        )
    work_item_id = None
    if isinstance(given.work_item_id, str):
        work_item_id = normalize_work_item_id(given.work_item_id)
        if work_item_id is None:
            raise Refusal(Code.WORK_ITEM_ID_INVALID, pointer=f"{at}/work_item_id")
    try:
        delivery_mode = DeliveryMode(given.delivery_mode)
    except ValueError:
        raise Refusal(Code.DELIVERY_MODE_UNKNOWN, pointer=f"{at}/delivery_mode") from None
    try:
        validation_policy = ValidationPolicy(given.validation_policy)
    except ValueError:
        raise Refusal(Code.VALIDATION_POLICY_UNKNOWN, pointer=f"{at}/validation_policy") from None
    return CreateTask(
        title=title,
        body=given.body,
        work_item_id=work_item_id,
        delivery_mode=delivery_mode,
        validation_policy=validation_policy,
    )
