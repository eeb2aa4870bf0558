"""What an attack is given, and beside it what only the scorer knows. One file a kind of view.

A view is made of captured bytes and of the labels of the train split, which are declared known plaintext; its answer
key (labels of select and test, documents) stays with the scorer.

    base      what all share: NotMeasurableError, for a view that this evidence cannot give
    token     rows of chosen items, to predict a token of each row     (forward_only, gradient_only, joint)
    units     one norm a unit, to tell real units from decoys          (forward_only, gradient_only, joint)
    unit_rows one row a unit, for the same                             (forward_only, gradient_only, joint)
    linkage   forward rows of all frames in order, without any label   (accumulated_history)
    trajectory   changes of the node's weights and moments         (stateful_remote_state)
    membership   candidates and the node's first and last weights  (membership_property)
    frame_membership   frames of candidates and of the training  (membership_property)
    timeline  when and how large messages were, of every step          (timing_metadata)
    metadata  the same with a private property of train steps          (timing_metadata)
    reaction  gradients along what an active tap added                 (active_perturbation)
    prompt    whole texts on every hop, to rebuild their tokens (forward_only, gradient_only, response_side)
    response  returned rows with the texts of train documents          (response_side)
"""
