"""Every tile instruction with random registers, addressing forms and shapes, against a model written from its documentation."""
