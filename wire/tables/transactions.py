"""Requests and responses for transactions."""

TABLE = """
AddPartitionsToTxn 24 versions 0-5 flexible 3+
request
  Transactions []AddPartitionsToTxnTransaction 4+
    TransactionalId string
    ProducerId int64
    ProducerEpoch int16
    VerifyOnly bool
    Topics []AddPartitionsToTxnTopic
      Name string
      Partitions []int32
  V3AndBelowTransactionalId string 0-3
  V3AndBelowProducerId int64 0-3
  V3AndBelowProducerEpoch int16 0-3
  V3AndBelowTopics []AddPartitionsToTxnTopic 0-3
response
  ThrottleTimeMs int32
  ErrorCode int16 4+ ignorable
  ResultsByTransaction []AddPartitionsToTxnResult 4+
    TransactionalId string
    TopicResults []AddPartitionsToTxnTopicResult
      Name string
      ResultsByPartition []AddPartitionsToTxnPartitionResult
        PartitionIndex int32
        PartitionErrorCode int16
  ResultsByTopicV3AndBelow []AddPartitionsToTxnTopicResult 0-3

AddOffsetsToTxn 25 versions 0-4 flexible 3+
request
  TransactionalId string
  ProducerId int64
  ProducerEpoch int16
  GroupId string
response
  ThrottleTimeMs int32
  ErrorCode int16

EndTxn 26 versions 0-5 flexible 3+
request
  TransactionalId string
  ProducerId int64
  ProducerEpoch int16
  Committed bool
response
  ThrottleTimeMs int32
  ErrorCode int16
  ProducerId int64 5+ ignorable = -1
  ProducerEpoch int16 5+ ignorable = -1

WriteTxnMarkers 27 versions 0-2 flexible 1+
request
  Markers []WritableTxnMarker
    ProducerId int64
    ProducerEpoch int16
    TransactionResult bool
    Topics []WritableTxnMarkerTopic
      Name string
      PartitionIndexes []int32
    CoordinatorEpoch int32
    TransactionVersion int8 2+ ignorable
response
  Markers []WritableTxnMarkerResult
    ProducerId int64
    Topics []WritableTxnMarkerTopicResult
      Name string
      Partitions []WritableTxnMarkerPartitionResult
        PartitionIndex int32
        ErrorCode int16

TxnOffsetCommit 28 versions 0-5 flexible 3+
request
  TransactionalId string
  GroupId string
  ProducerId int64
  ProducerEpoch int16
  GenerationId int32 3+ = -1
  MemberId string 3+
  GroupInstanceId string? 3+ = null
  Topics []TxnOffsetCommitRequestTopic
    Name string
    Partitions []TxnOffsetCommitRequestPartition
      PartitionIndex int32
      CommittedOffset int64
      CommittedLeaderEpoch int32 2+ ignorable = -1
      CommittedMetadata string?
response
  ThrottleTimeMs int32
  Topics []TxnOffsetCommitResponseTopic
    Name string
    Partitions []TxnOffsetCommitResponsePartition
      PartitionIndex int32
      ErrorCode int16

DescribeTransactions 65 versions 0-0 flexible 0+
request
  TransactionalIds []string
response
  ThrottleTimeMs int32
  TransactionStates []TransactionState
    ErrorCode int16
    TransactionalId string
    TransactionState string
    TransactionTimeoutMs int32
    TransactionStartTimeMs int64
    ProducerId int64
    ProducerEpoch int16
    Topics []TopicData
      Topic string
      Partitions []int32

ListTransactions 66 versions 0-2 flexible 0+
request
  StateFilters []string
  ProducerIdFilters []int64
  DurationFilter int64 1+ = -1
  TransactionalIdPattern string? 2+ = null
response
  ThrottleTimeMs int32
  ErrorCode int16
  UnknownStateFilters []string
  TransactionStates []TransactionState
    TransactionalId string
    ProducerId int64
    TransactionState string
"""
