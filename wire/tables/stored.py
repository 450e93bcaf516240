"""Records of Kafka's internal topics: `__consumer_offsets` and `__transaction_state`.

The records of the new group protocol (KIP-848, keys from 3 on) have the form of Kafka 3.8 and later: 3.7's
was a preview.
"""

TABLE = """
OffsetCommit in __consumer_offsets key 0-1 value 0-4 flexible 4+
key
  Group string
  Topic string
  Partition int32
value
  Offset int64
  LeaderEpoch int32 3+ ignorable = -1
  Metadata string
  CommitTimestamp int64
  ExpireTimestamp int64 1-1 ignorable = -1

GroupMetadata in __consumer_offsets key 2-2 value 0-4 flexible 4+
key
  Group string
value
  ProtocolType string
  Generation int32
  Protocol string?
  Leader string?
  CurrentStateTimestamp int64 2+ ignorable = -1
  Members []MemberMetadata
    MemberId string
    GroupInstanceId string? 3+ ignorable = null
    ClientId string
    ClientHost string
    RebalanceTimeout int32 1+ ignorable = -1
    SessionTimeout int32
    Subscription bytes
    Assignment bytes

ConsumerGroupMetadata in __consumer_offsets key 3-3 value 0-0 flexible 0+
key
  GroupId string
value
  Epoch int32

ConsumerGroupPartitionMetadata in __consumer_offsets key 4-4 value 0-0 flexible 0+
key
  GroupId string
value
  Topics []TopicMetadata
    TopicId uuid
    TopicName string
    NumPartitions int32
    PartitionMetadata []PartitionMetadata
      Partition int32
      Racks []string

ConsumerGroupMemberMetadata in __consumer_offsets key 5-5 value 0-0 flexible 0+
key
  GroupId string
  MemberId string
value
  InstanceId string?
  RackId string?
  ClientId string
  ClientHost string
  SubscribedTopicNames []string
  SubscribedTopicRegex string?
  RebalanceTimeoutMs int32 = -1
  ServerAssignor string?
  ClassicMemberMetadata ClassicMemberMetadata? tag 0 = null
    SessionTimeoutMs int32
    SupportedProtocols []ClassicProtocol
      Name string
      Metadata bytes

ConsumerGroupTargetAssignmentMetadata in __consumer_offsets key 6-6 value 0-0 flexible 0+
key
  GroupId string
value
  AssignmentEpoch int32

ConsumerGroupTargetAssignmentMember in __consumer_offsets key 7-7 value 0-0 flexible 0+
key
  GroupId string
  MemberId string
value
  TopicPartitions []TopicPartition
    TopicId uuid
    Partitions []int32

ConsumerGroupCurrentMemberAssignment in __consumer_offsets key 8-8 value 0-0 flexible 0+
key
  GroupId string
  MemberId string
value
  MemberEpoch int32
  PreviousMemberEpoch int32
  State int8
  AssignedPartitions []TopicPartitions
    TopicId uuid
    Partitions []int32
  PartitionsPendingRevocation []TopicPartitions

ConsumerGroupRegularExpression in __consumer_offsets key 16-16 value 0-0 flexible 0+
key
  GroupId string
  RegularExpression string
value
  Topics []string
  Version int64
  Timestamp int64

TransactionLog in __transaction_state key 0-0 value 0-1 flexible 1+
key
  TransactionalId string
value
  ProducerId int64
  ProducerEpoch int16
  TransactionTimeoutMs int32
  TransactionStatus int8
  TransactionPartitions []PartitionsSchema?
    Topic string
    PartitionIds []int32
  TransactionLastUpdateTimestampMs int64
  TransactionStartTimestampMs int64
"""
