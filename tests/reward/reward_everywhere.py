"""Scores all labelled cases in this process; prints one line a verdict. Run by `test_everywhere`."""

from reward_cases import given_cases, own_cases

from retool.reward import Scorer


def lines() -> list[str]:
    with Scorer() as scorer:
        verdicts = [scorer.score(case.text, case.gold) for case in own_cases()[::4] + given_cases()]
    return [f"{verdict.reward} {verdict.valid_format} {verdict.reason}" for verdict in verdicts]


def send_lines(connection) -> None:
    connection.send(lines())


if __name__ == "__main__":
    print("\n".join(lines()))
