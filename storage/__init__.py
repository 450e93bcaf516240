"""Record batches, segmented log, leader-epoch table, snapshot files and the Disk interface."""

if __name__ == "storage":
    raise ImportError("import metaquorum.storage: this folder is a part of the package metaquorum")
