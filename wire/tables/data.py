"""Requests and responses for reading and writing partitions, and for transactions."""

TABLE = """
Produce 0 versions 0-13 flexible 9+
request
  TransactionalId string? 3+ = null
  Acks int16
  TimeoutMs int32
  TopicData []TopicProduceData
    Name string 0-12 ignorable
    TopicId uuid 13+ ignorable
    PartitionData []PartitionProduceData
      Index int32
      Records records?
response
  Responses []TopicProduceResponse
    Name string 0-12 ignorable
    TopicId uuid 13+ ignorable
    PartitionResponses []PartitionProduceResponse
      Index int32
      ErrorCode int16
      BaseOffset int64
      LogAppendTimeMs int64 2+ ignorable = -1
      LogStartOffset int64 5+ ignorable = -1
      RecordErrors []BatchIndexAndErrorMessage 8+ ignorable
        BatchIndex int32
        BatchIndexErrorMessage string? = null
      ErrorMessage string? 8+ ignorable = null
      CurrentLeader LeaderIdAndEpoch 10+ tag 0
        LeaderId int32 = -1
        LeaderEpoch int32 = -1
  ThrottleTimeMs int32 1+ ignorable
  NodeEndpoints []NodeEndpoint 10+ tag 0
    NodeId int32
    Host string
    Port int32
    Rack string? = null

Fetch 1 versions 0-18 flexible 12+
request
  ClusterId string? 12+ tag 0 ignorable = null
  ReplicaId int32 0-14 = -1
  ReplicaState ReplicaState 15+ tag 1
    ReplicaId int32 = -1
    ReplicaEpoch int64 = -1
  MaxWaitMs int32
  MinBytes int32
  MaxBytes int32 3+ ignorable = 2147483647
  IsolationLevel int8 4+ ignorable
  SessionId int32 7+ ignorable
  SessionEpoch int32 7+ ignorable = -1
  Topics []FetchTopic
    Topic string 0-12 ignorable
    TopicId uuid 13+ ignorable
    Partitions []FetchPartition
      Partition int32
      CurrentLeaderEpoch int32 9+ ignorable = -1
      FetchOffset int64
      LastFetchedEpoch int32 12+ = -1
      LogStartOffset int64 5+ ignorable = -1
      PartitionMaxBytes int32
      ReplicaDirectoryId uuid 17+ tag 0 ignorable
      HighWatermark int64 18+ tag 1 ignorable = 9223372036854775807
  ForgottenTopicsData []ForgottenTopic 7+
    Topic string 7-12 ignorable
    TopicId uuid 13+ ignorable
    Partitions []int32
  RackId string 11+ ignorable
response
  ThrottleTimeMs int32 1+ ignorable
  ErrorCode int16 7+ ignorable
  SessionId int32 7+
  Responses []FetchableTopicResponse
    Topic string 0-12 ignorable
    TopicId uuid 13+ ignorable
    Partitions []PartitionData
      PartitionIndex int32
      ErrorCode int16
      HighWatermark int64
      LastStableOffset int64 4+ ignorable = -1
      LogStartOffset int64 5+ ignorable = -1
      DivergingEpoch EpochEndOffset 12+ tag 0
        Epoch int32 = -1
        EndOffset int64 = -1
      CurrentLeader LeaderIdAndEpoch 12+ tag 1
        LeaderId int32 = -1
        LeaderEpoch int32 = -1
      SnapshotId SnapshotId 12+ tag 2
        EndOffset int64 = -1
        Epoch int32 = -1
      AbortedTransactions []AbortedTransaction? 4+ ignorable
        ProducerId int64
        FirstOffset int64
      PreferredReadReplica int32 11+ = -1
      Records records?
  NodeEndpoints []NodeEndpoint 16+ tag 0
    NodeId int32
    Host string
    Port int32
    Rack string? = null

ListOffsets 2 versions 0-11 flexible 6+
request
  ReplicaId int32
  IsolationLevel int8 2+
  Topics []ListOffsetsTopic
    Name string
    Partitions []ListOffsetsPartition
      PartitionIndex int32
      CurrentLeaderEpoch int32 4+ ignorable = -1
      Timestamp int64
      MaxNumOffsets int32 0-0 = 1
  TimeoutMs int32 10+ ignorable
response
  ThrottleTimeMs int32 2+ ignorable
  Topics []ListOffsetsTopicResponse
    Name string
    Partitions []ListOffsetsPartitionResponse
      PartitionIndex int32
      ErrorCode int16
      OldStyleOffsets []int64 0-0
      Timestamp int64 1+ = -1
      Offset int64 1+ = -1
      LeaderEpoch int32 4+ = -1

DeleteRecords 21 versions 0-2 flexible 2+
request
  Topics []DeleteRecordsTopic
    Name string
    Partitions []DeleteRecordsPartition
      PartitionIndex int32
      Offset int64
  TimeoutMs int32
response
  ThrottleTimeMs int32
  Topics []DeleteRecordsTopicResult
    Name string
    Partitions []DeleteRecordsPartitionResult
      PartitionIndex int32
      LowWatermark int64
      ErrorCode int16

InitProducerId 22 versions 0-6 flexible 2+
request
  TransactionalId string?
  TransactionTimeoutMs int32
  ProducerId int64 3+ = -1
  ProducerEpoch int16 3+ = -1
  Enable2Pc bool 6+
  KeepPreparedTxn bool 6+
response
  ThrottleTimeMs int32 ignorable
  ErrorCode int16
  ProducerId int64 = -1
  ProducerEpoch int16
  OngoingTxnProducerId int64 6+ ignorable = -1
  OngoingTxnProducerEpoch int16 6+ ignorable = -1

OffsetForLeaderEpoch 23 versions 0-4 flexible 4+
request
  ReplicaId int32 3+ ignorable = -2
  Topics []OffsetForLeaderTopic
    Topic string
    Partitions []OffsetForLeaderPartition
      Partition int32
      CurrentLeaderEpoch int32 2+ ignorable = -1
      LeaderEpoch int32
response
  ThrottleTimeMs int32 2+ ignorable
  Topics []OffsetForLeaderTopicResult
    Topic string
    Partitions []EpochEndOffset
      ErrorCode int16
      Partition int32
      LeaderEpoch int32 1+ ignorable = -1
      EndOffset int64 = -1

DescribeProducers 61 versions 0-0 flexible 0+
request
  Topics []TopicRequest
    Name string
    PartitionIndexes []int32
response
  ThrottleTimeMs int32
  Topics []TopicResponse
    Name string
    Partitions []PartitionResponse
      PartitionIndex int32
      ErrorCode int16
      ErrorMessage string? = null
      ActiveProducers []ProducerState
        ProducerId int64
        ProducerEpoch int32
        LastSequence int32 = -1
        LastTimestamp int64 = -1
        CoordinatorEpoch int32
        CurrentTxnStartOffset int64 = -1

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
