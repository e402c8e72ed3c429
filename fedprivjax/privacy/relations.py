"""Neighbouring relations, and the factor of each in a sensitivity: 2 for replace-one."""

REPLACE_ONE, ADD_OR_REMOVE = "replace-one", "add-or-remove-one"
RELATIONS = {
    REPLACE_ONE: "one is replaced by another",
    ADD_OR_REMOVE: "one is added or left out",
}


def vectors_changed(relation: str) -> int:
    """Return the number of vectors by which a sum changes, which multiplies the clip in its sensitivity.

    It is 2 if one vector is replaced, because one leaves the sum and another enters, and 1 if one is added or removed.
    """
    return 1 if relation == ADD_OR_REMOVE else 2
