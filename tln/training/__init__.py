"""Preparing texts and fine-tuning on them: what `tln prepare` and `tln train` do.

    corpus, prepare       texts to blocks, and what the frozen parts make of them, kept beside the texts
    finetune              one run from settings to report
    trainer               the loop; a step takes its blocks from batches, its loss from losses
    calibration, priming  what the defence needs before anything crosses: the clip, and filled pools
    checkpoints, resume   a run that was cut off goes on; journal keeps what was sent since
    utility, ledger       what the split costs, and what was released about each document
    membership            canaries and frames by which an audit can measure who took part

Settings of a run are in settings.py; what it leaves behind is made by report.py and results_folder.py.
"""
