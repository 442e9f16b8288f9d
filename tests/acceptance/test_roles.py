"""Who may call what: every operation of the description, by every kind of caller, on open and closed spaces."""

import httpx
import pytest

from models.rules.spaces import Role, Visibility
from models.store import agents as store_agents
from models.store.database import admin_engine
from models.store.spaces import set_members
from tests.exchange import REQUESTS
from tests.stack import Agent, Board, Database, Stack, add_agents, add_board, create, headers_of, play

BODIES = {
    "createSpace": {"slug": "fresh"},
    "setSpaceCharter": {"catalog": []},
    "previewBind": {"title": "Count fish"},
    "setSpaceMember": {"role": "member"},
    "createSpaceTask": {"title": "Count birds"},
    "createSpaceTasks": {"tasks": [{"title": "Count cats"}]},
    "assignSpaceTask": {"assignee": "agt_nobody"},
    "reviewSpaceTask": {"decision": "accept"},
    "withdrawSpaceTask": {"reason": "Moot"},
    "holdSpaceTask": {"reason": "Wait"},
    "unholdSpaceTask": {"reason": "Go on"},
    "supersedeSpaceTask": {"surviving_task": 2, "reason": "allocation_duplicate"},
    "closeSpaceTask": {"surviving_task": 2, "reason": "allocation_duplicate"},
    "postTaskNote": {"kind": "post_review_note", "body": "Met"},
}
BODIES |= {
    name: REQUESTS[fictional]["body"]
    for name, fictional in {
        "publishWork": "create",
        "correctWork": "correct-opportunity",
        "withdrawWork": "withdraw-opportunity",
        "proposeWork": "propose",
        "actOnWorkProposal": "refuse",
        "resolveWork": "resolve-create",
    }.items()
}
"""A sound body for each operation that needs one."""

STEWARD_ONLY = {
    "setSpaceCharter",
    "setSpaceMember",
    "removeSpaceMember",
    "assignSpaceTask",
    "reopenSpaceTask",
    "holdSpaceTask",
    "unholdSpaceTask",
}
ROLES = {"not_a_member", "steward_required", "actor_not_active", "space_not_found", "authentication_required"}


class Callers:
    """One of each kind on one board. ``revoked`` and ``deactivated`` are members that lost something."""

    def __init__(self, database: Database, board: Board) -> None:
        self.board = board
        names = ("outsider", "member", "steward", "revoked", "deactivated", "third")
        made = dict(zip(names, add_agents(database, [f"{board.slug}-{name}" for name in names]), strict=True))
        roles = {made[name].id: Role.MEMBER for name in names[1:]} | {made["steward"].id: Role.STEWARD}
        with admin_engine(database.owner_url).begin() as connection:
            set_members(connection, board.space_id, roles)
            store_agents.revoke_keys(connection, [made["revoked"].key_id])
            store_agents.set_agent(connection, made["deactivated"].handle, active=False)
        self.agents = made

    def headers(self, name: str) -> dict[str, str]:
        if name == "nobody":
            return {}
        if name == "stranger":
            forged = Agent("", "", "", self.agents["member"].key[:-4] + "AAAA")
            return headers_of(forged)
        return headers_of(self.agents[name])


CALLERS = ("nobody", "stranger", "revoked", "deactivated", "outsider", "member", "steward")


@pytest.mark.parametrize("visibility", list(Visibility))
def test_the_matrix(service: Stack, database: Database, visibility: Visibility) -> None:
    board = add_board(database, slug="matrix", members=1, visibility=visibility)
    callers = Callers(database, board)

    async def scenario(http: httpx.AsyncClient) -> None:
        for title in ("Count fish", "Count whales"):
            await create(http, board, board.members[0], {"title": title})
        window = database.value("SELECT id FROM windows LIMIT 1")
        proposal = f"prp_{database.value('SELECT append_id FROM outcomes LIMIT 1').hex}"
        fields = {"slug": board.slug, "task_id": "1", "note_id": "1", "window_id": str(window), "proposal_id": proposal}
        fields |= {"work_id": "commonswork-" + "0" * 24, "work_proposal_id": "commonsproposal-" + "1" * 24}
        described = (await http.get("/v0/openapi.json")).json()["paths"]
        needed = set()
        for path, item in described.items():
            for method, operation in item.items():
                if method == "parameters" or path.endswith("/stream"):
                    continue
                name = operation["operationId"]
                if operation.get("requestBody", {}).get("required"):
                    needed.add(name)
                for caller in CALLERS:
                    place = path.format(**fields, agent=callers.agents["third"].id)
                    headers = callers.headers(caller)
                    if place.startswith("/api/") and method == "post":
                        headers["Idempotency-Key"] = f"{name}-{caller}-".ljust(40, "k")
                    answer = await http.request(method, place, json=BODIES.get(name), headers=headers)
                    assert str(answer.status_code) in operation["responses"], (name, caller, answer.text)
                    check(path, operation, caller, answer, closed=visibility is Visibility.MEMBERS)
        assert needed == BODIES.keys()

    play(service, scenario)


def check(path: str, operation: dict, caller: str, answer: httpx.Response, *, closed: bool) -> None:
    """Compare one answer with what the operation's properties say of this caller."""
    name = operation["operationId"]
    security = operation.get("security", [{}])
    writes = "window of its partition" in operation.get("description", "")
    told = answer.json() if answer.status_code >= 400 else {}
    code = told["error"]["code"] if isinstance(told.get("error"), dict) else told.get("code")
    spaced = "{slug}" in path
    hidden = "proposal_unknown" if name == "getProposal" else "space_not_found"
    if security == [{}]:
        assert code not in ROLES, (name, caller, code)
    elif caller in {"stranger", "revoked"}:
        assert (answer.status_code, code) == (401, "credential_invalid"), (name, caller)
    elif caller == "nobody" and {} not in security:
        assert (answer.status_code, code) == (401, "authentication_required"), name
    elif caller in {"nobody", "outsider"} and closed and (spaced or name == "getProposal"):
        assert (answer.status_code, code) == (404, hidden), (name, caller)
    elif caller == "deactivated" and writes:
        assert (answer.status_code, code) == (403, "actor_not_active"), name
    elif caller == "outsider" and writes and spaced:
        assert (answer.status_code, code) == (403, "not_a_member"), name
    elif caller == "member" and name in STEWARD_ONLY:
        assert (answer.status_code, code) == (403, "steward_required"), name
    else:
        assert code not in ROLES, (name, caller, code)
