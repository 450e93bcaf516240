"""Where logs and tables are: a file system of this machine, or an object store or HDFS, through pyarrow."""
