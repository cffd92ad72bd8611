"""The requests that wait for the view of the group, which the coordinator of a connect group sends on request. `orders`
keeps and answers them; `lifecycle` refuses them when this worker ends."""

from coterie.herder.messages import Reply
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.refusals import Problem, RequestRefused
from coterie.herder.state import GroupRequest, Turn


def keep_until_view_arrives(turn: Turn, id_: RequestId, request: GroupRequest) -> None:
    """Keep the request until the view of the group has arrived."""
    turn.herder.requests.awaiting_group_view += ((id_, request),)


def take_all(turn: Turn) -> tuple[tuple[RequestId, GroupRequest], ...]:
    """Remove and return the requests that wait for the view, in the order in which they arrived. The caller answers
    them."""
    waiting, turn.herder.requests.awaiting_group_view = turn.herder.requests.awaiting_group_view, ()
    return waiting


def refuse_all(turn: Turn, problem: Problem, message: str) -> None:
    """Refuse all requests that wait for the view of the group."""
    for id_, _ in take_all(turn):
        turn.emit(Reply(id=id_, answer=RequestRefused(problem=problem, message=message)))
