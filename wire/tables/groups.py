"""Requests and responses for consumer groups and their offsets."""

TABLE = """
OffsetCommit 8 versions 0-10 flexible 8+
request
  GroupId string
  GenerationIdOrMemberEpoch int32 1+ ignorable = -1
  MemberId string 1+ ignorable
  GroupInstanceId string? 7+ = null
  RetentionTimeMs int64 2-4 ignorable = -1
  Topics []OffsetCommitRequestTopic
    Name string 0-9 ignorable
    TopicId uuid 10+ ignorable
    Partitions []OffsetCommitRequestPartition
      PartitionIndex int32
      CommittedOffset int64
      CommittedLeaderEpoch int32 6+ ignorable = -1
      CommitTimestamp int64 1-1 = -1
      CommittedMetadata string?
response
  ThrottleTimeMs int32 3+ ignorable
  Topics []OffsetCommitResponseTopic
    Name string 0-9 ignorable
    TopicId uuid 10+ ignorable
    Partitions []OffsetCommitResponsePartition
      PartitionIndex int32
      ErrorCode int16

OffsetFetch 9 versions 0-10 flexible 6+
request
  GroupId string 0-7
  Topics []OffsetFetchRequestTopic?2+ 0-7
    Name string
    PartitionIndexes []int32
  Groups []OffsetFetchRequestGroup 8+
    GroupId string
    MemberId string? 9+ ignorable = null
    MemberEpoch int32 9+ ignorable = -1
    Topics []OffsetFetchRequestTopics?
      Name string 8-9 ignorable
      TopicId uuid 10+ ignorable
      PartitionIndexes []int32
  RequireStable bool 7+
response
  ThrottleTimeMs int32 3+ ignorable
  Topics []OffsetFetchResponseTopic 0-7
    Name string
    Partitions []OffsetFetchResponsePartition
      PartitionIndex int32
      CommittedOffset int64
      CommittedLeaderEpoch int32 5+ ignorable = -1
      Metadata string?
      ErrorCode int16
  ErrorCode int16 2-7 ignorable
  Groups []OffsetFetchResponseGroup 8+
    GroupId string
    Topics []OffsetFetchResponseTopics
      Name string 8-9 ignorable
      TopicId uuid 10+ ignorable
      Partitions []OffsetFetchResponsePartitions
        PartitionIndex int32
        CommittedOffset int64
        CommittedLeaderEpoch int32 ignorable = -1
        Metadata string?
        ErrorCode int16
    ErrorCode int16

JoinGroup 11 versions 0-9 flexible 6+
request
  GroupId string
  SessionTimeoutMs int32
  RebalanceTimeoutMs int32 1+ ignorable = -1
  MemberId string
  GroupInstanceId string? 5+ = null
  ProtocolType string
  Protocols []JoinGroupRequestProtocol
    Name string
    Metadata bytes
  Reason string? 8+ ignorable = null
response
  ThrottleTimeMs int32 2+ ignorable
  ErrorCode int16
  GenerationId int32 = -1
  ProtocolType string? 7+ ignorable = null
  ProtocolName string?7+
  Leader string
  SkipAssignment bool 9+
  MemberId string
  Members []JoinGroupResponseMember
    MemberId string
    GroupInstanceId string? 5+ ignorable = null
    Metadata bytes

Heartbeat 12 versions 0-4 flexible 4+
request
  GroupId string
  GenerationId int32
  MemberId string
  GroupInstanceId string? 3+ = null
response
  ThrottleTimeMs int32 1+ ignorable
  ErrorCode int16

LeaveGroup 13 versions 0-5 flexible 4+
request
  GroupId string
  MemberId string 0-2
  Members []MemberIdentity 3+
    MemberId string
    GroupInstanceId string? = null
    Reason string? 5+ ignorable = null
response
  ThrottleTimeMs int32 1+ ignorable
  ErrorCode int16
  Members []MemberResponse 3+
    MemberId string
    GroupInstanceId string?
    ErrorCode int16

SyncGroup 14 versions 0-5 flexible 4+
request
  GroupId string
  GenerationId int32
  MemberId string
  GroupInstanceId string? 3+ = null
  ProtocolType string? 5+ ignorable = null
  ProtocolName string? 5+ ignorable = null
  Assignments []SyncGroupRequestAssignment
    MemberId string
    Assignment bytes
response
  ThrottleTimeMs int32 1+ ignorable
  ErrorCode int16
  ProtocolType string? 5+ ignorable = null
  ProtocolName string? 5+ ignorable = null
  Assignment bytes

DescribeGroups 15 versions 0-6 flexible 5+
request
  Groups []string
  IncludeAuthorizedOperations bool 3+
response
  ThrottleTimeMs int32 1+ ignorable
  Groups []DescribedGroup
    ErrorCode int16
    ErrorMessage string? 6+ ignorable = null
    GroupId string
    GroupState string
    ProtocolType string
    ProtocolData string
    Members []DescribedGroupMember
      MemberId string
      GroupInstanceId string? 4+ ignorable = null
      ClientId string
      ClientHost string
      MemberMetadata bytes
      MemberAssignment bytes
    AuthorizedOperations int32 3+ = -2147483648

ListGroups 16 versions 0-5 flexible 3+
request
  StatesFilter []string 4+
  TypesFilter []string 5+
response
  ThrottleTimeMs int32 1+ ignorable
  ErrorCode int16
  Groups []ListedGroup
    GroupId string
    ProtocolType string
    GroupState string 4+ ignorable
    GroupType string 5+ ignorable

DeleteGroups 42 versions 0-2 flexible 2+
request
  GroupsNames []string
response
  ThrottleTimeMs int32
  Results []DeletableGroupResult
    GroupId string
    ErrorCode int16

OffsetDelete 47 versions 0-0 flexible never
request
  GroupId string
  Topics []OffsetDeleteRequestTopic
    Name string
    Partitions []OffsetDeleteRequestPartition
      PartitionIndex int32
response
  ErrorCode int16
  ThrottleTimeMs int32 ignorable
  Topics []OffsetDeleteResponseTopic
    Name string
    Partitions []OffsetDeleteResponsePartition
      PartitionIndex int32
      ErrorCode int16

ConsumerGroupHeartbeat 68 versions 0-1 flexible 0+
request
  GroupId string
  MemberId string
  MemberEpoch int32
  InstanceId string? = null
  RackId string? = null
  RebalanceTimeoutMs int32 = -1
  SubscribedTopicNames []string? = null
  SubscribedTopicRegex string? 1+ = null
  ServerAssignor string? = null
  TopicPartitions []TopicPartitions? = null
    TopicId uuid
    Partitions []int32
response
  ThrottleTimeMs int32
  ErrorCode int16
  ErrorMessage string? = null
  MemberId string? = null
  MemberEpoch int32
  HeartbeatIntervalMs int32
  Assignment Assignment? = null
    TopicPartitions []TopicPartitions
      TopicId uuid
      Partitions []int32

ConsumerGroupDescribe 69 versions 0-1 flexible 0+
request
  GroupIds []string
  IncludeAuthorizedOperations bool
response
  ThrottleTimeMs int32
  Groups []DescribedGroup
    ErrorCode int16
    ErrorMessage string? = null
    GroupId string
    GroupState string
    GroupEpoch int32
    AssignmentEpoch int32
    AssignorName string
    Members []Member
      MemberId string
      InstanceId string? = null
      RackId string? = null
      MemberEpoch int32
      ClientId string
      ClientHost string
      SubscribedTopicNames []string
      SubscribedTopicRegex string? = null
      Assignment Assignment
        TopicPartitions []TopicPartitions
          TopicId uuid
          TopicName string
          Partitions []int32
      TargetAssignment Assignment
      MemberType int8 1+ ignorable = -1
    AuthorizedOperations int32 = -2147483648
"""
