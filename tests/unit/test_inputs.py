import json

import pytest

from models.rules.codes import Code
from models.rules.conflict import DeliveryMode
from models.rules.intents import CreateTask, ValidationPolicy
from models.rules.tasks import BODY_CHARACTERS_MAX
from web.inputs import batch_decoder, create_task, task_decoder
from web.problems import Refusal
from web.strict_json import JsonRefused, parse


def task(**fields):
    return create_task(parse(json.dumps({"title": "Map the reef", **fields}).encode(), task_decoder))


def refusal(**fields):
    given = parse(json.dumps({"title": "Map the reef", **fields}).encode(), task_decoder)
    with pytest.raises(Refusal) as refused:
        create_task(given, at="/tasks/3")
    problem = refused.value.problem
    return problem.code, problem.pointer


def shape_refusal(text, decoder=task_decoder):
    with pytest.raises(JsonRefused) as refused:
        parse(text.encode(), decoder)
    return refused.value.code, refused.value.pointer


class TestTask:
    def test_needs_a_title_alone(self):
        assert task() == CreateTask(
            title="Map the reef",
            body="",
            work_item_id=None,
            delivery_mode=DeliveryMode.RESULT,
            validation_policy=ValidationPolicy.EVIDENCE,
        )

    def test_takes_all_its_fields(self):
        given = {
            "title": " Map\tthe  reef ",
            "body": " as it is \r\n",
            "work_item_id": " t007 ",
            "delivery_mode": "repository_change",
            "validation_policy": "none",
        }
        assert task(**given) == CreateTask(
            title="Map the reef",
            body=" as it is \r\n",
            work_item_id="T7",
            delivery_mode=DeliveryMode.REPOSITORY_CHANGE,
            validation_policy=ValidationPolicy.NONE,
        )

    def test_has_its_title_composed(self):
        assert task(title="Cafe\u0301").title == "Caf\u00e9"

    @pytest.mark.parametrize(
        ("title", "code"),
        [
            ("", Code.TITLE_EMPTY),
            (" \t\r\n\u2003", Code.TITLE_EMPTY),
            ("x" * 301, Code.TITLE_INVALID),
            ("a\u0000b", Code.TITLE_INVALID),
            ("a\u202eb", Code.TITLE_INVALID),
            ("a\u200bb", Code.TITLE_INVALID),
        ],
        ids=["empty", "blank", "long", "nul", "bidi", "zero width"],
    )
    def test_is_refused_with_a_title_that_makes_no_key(self, title, code):
        assert refusal(title=title) == (code, "/tasks/3/title")

    def test_may_be_of_three_hundred_characters(self):
        assert task(title="x" * 300).title == "x" * 300

    @pytest.mark.parametrize("text", ["x" * (BODY_CHARACTERS_MAX + 1), "\0", "fine until\0here"])
    def test_is_refused_with_a_body_that_cannot_be_kept(self, text):
        assert refusal(body=text) == (Code.BODY_INVALID, "/tasks/3/body")

    def test_counts_its_body_in_characters(self):
        assert BODY_CHARACTERS_MAX == 8000
        assert task(body="\U0001f600" * 8000).body == "\U0001f600" * 8000

    @pytest.mark.parametrize("text", ["", "1", "T", "TT1", "T1 2", "T-1", "T1.0", "T\u0661", "T" + "9" * 19])
    def test_is_refused_with_a_work_item_id_of_another_shape(self, text):
        assert refusal(work_item_id=text) == (Code.WORK_ITEM_ID_INVALID, "/tasks/3/work_item_id")

    @pytest.mark.parametrize("text", ["", "results", "RESULT", " result", "result\n"])
    def test_is_refused_with_a_delivery_mode_that_is_none(self, text):
        assert refusal(delivery_mode=text) == (Code.DELIVERY_MODE_UNKNOWN, "/tasks/3/delivery_mode")

    @pytest.mark.parametrize("text", ["", "Evidence", "nothing"])
    def test_is_refused_with_a_policy_that_is_none(self, text):
        assert refusal(validation_policy=text) == (Code.VALIDATION_POLICY_UNKNOWN, "/tasks/3/validation_policy")

    def test_tells_its_first_fault_in_the_order_of_the_fields(self):
        assert refusal(title="", body="\0", delivery_mode="x")[0] is Code.TITLE_EMPTY
        assert refusal(body="\0", work_item_id="x", delivery_mode="x")[0] is Code.BODY_INVALID
        assert refusal(work_item_id="x", delivery_mode="x")[0] is Code.WORK_ITEM_ID_INVALID
        assert refusal(delivery_mode="x", validation_policy="x")[0] is Code.DELIVERY_MODE_UNKNOWN

    def test_alone_points_into_its_own_body(self):
        with pytest.raises(Refusal) as refused:
            create_task(parse(b'{"title": ""}', task_decoder))
        assert refused.value.problem.pointer == "/title"


class TestShape:
    @pytest.mark.parametrize("field", ["title", "body", "work_item_id", "delivery_mode", "validation_policy"])
    @pytest.mark.parametrize("value", ["null", "1", "true", "[]", "{}"])
    def test_of_a_field_is_text_and_nothing_else(self, field, value):
        others = "" if field == "title" else '"title": "x", '
        assert shape_refusal(f'{{{others}"{field}": {value}}}') == (Code.FIELD_INVALID, f"/{field}")

    def test_has_a_title(self):
        assert shape_refusal('{"body": "x"}')[0] is Code.FIELD_MISSING

    @pytest.mark.parametrize(
        "field",
        [
            "id",
            "status",
            "created_by",
            "actor",
            "received_seq",
            "window_id",
            "revision",
            "conflict_key",
            "held",
            "bind",
        ],
    )
    def test_has_nothing_that_is_the_servers_to_say(self, field):
        assert shape_refusal(f'{{"title": "x", "{field}": "x"}}')[0] is Code.FIELD_UNKNOWN

    @pytest.mark.parametrize("text", ['"x"', "[]", "1", "null"])
    def test_is_an_object(self, text):
        assert shape_refusal(text)[0] is Code.FIELD_INVALID


class TestBatch:
    def test_has_one_to_a_hundred_tasks(self):
        for count in (1, 100):
            given = parse(json.dumps({"tasks": [{"title": "x"}] * count}).encode(), batch_decoder)
            assert len(given.tasks) == count

    @pytest.mark.parametrize("count", [0, 101])
    def test_of_another_number_is_refused(self, count):
        text = json.dumps({"tasks": [{"title": "x"}] * count})
        assert shape_refusal(text, batch_decoder) == (Code.FIELD_INVALID, "/tasks")

    def test_points_to_the_item_that_is_wrong(self):
        text = '{"tasks": [{"title": "x"}, {"title": null}]}'
        assert shape_refusal(text, batch_decoder) == (Code.FIELD_INVALID, "/tasks/1/title")

    @pytest.mark.parametrize("text", ["{}", '{"tasks": [], "more": 1}', '{"tasks": {}}', '{"tasks": null}'])
    def test_is_a_list_of_tasks_and_nothing_more(self, text):
        assert shape_refusal(text, batch_decoder)[0] in {Code.FIELD_MISSING, Code.FIELD_INVALID, Code.FIELD_UNKNOWN}
