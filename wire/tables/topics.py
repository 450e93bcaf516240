"""Requests and responses for topics, partitions, log directories and configurations."""

TABLE = """
CreateTopics 19 versions 0-7 flexible 5+
request
  Topics []CreatableTopic
    Name string
    NumPartitions int32
    ReplicationFactor int16
    Assignments []CreatableReplicaAssignment
      PartitionIndex int32
      BrokerIds []int32
    Configs []CreatableTopicConfig
      Name string
      Value string?
  timeoutMs int32 = 60000
  validateOnly bool 1+
response
  ThrottleTimeMs int32 2+ ignorable
  Topics []CreatableTopicResult
    Name string
    TopicId uuid 7+ ignorable
    ErrorCode int16
    ErrorMessage string? 1+ ignorable
    TopicConfigErrorCode int16 5+ tag 0 ignorable
    NumPartitions int32 5+ ignorable = -1
    ReplicationFactor int16 5+ ignorable = -1
    Configs []CreatableTopicConfigs? 5+ ignorable
      Name string
      Value string?
      ReadOnly bool
      ConfigSource int8 ignorable = -1
      IsSensitive bool

DeleteTopics 20 versions 0-6 flexible 4+
request
  Topics []DeleteTopicState 6+
    Name string? = null
    TopicId uuid
  TopicNames []string 0-5 ignorable
  TimeoutMs int32
response
  ThrottleTimeMs int32 1+ ignorable
  Responses []DeletableTopicResult
    Name string?6+
    TopicId uuid 6+ ignorable
    ErrorCode int16
    ErrorMessage string? 5+ ignorable = null

DescribeConfigs 32 versions 0-4 flexible 4+
request
  Resources []DescribeConfigsResource
    ResourceType int8
    ResourceName string
    ConfigurationKeys []string?
  IncludeSynonyms bool 1+
  IncludeDocumentation bool 3+
response
  ThrottleTimeMs int32
  Results []DescribeConfigsResult
    ErrorCode int16
    ErrorMessage string?
    ResourceType int8
    ResourceName string
    Configs []DescribeConfigsResourceResult
      Name string
      Value string?
      ReadOnly bool
      IsDefault bool 0-0
      ConfigSource int8 1+ ignorable = -1
      IsSensitive bool
      Synonyms []DescribeConfigsSynonym 1+ ignorable
        Name string
        Value string?
        Source int8
      ConfigType int8 3+ ignorable
      Documentation string? 3+ ignorable

AlterConfigs 33 versions 0-2 flexible 2+
request
  Resources []AlterConfigsResource
    ResourceType int8
    ResourceName string
    Configs []AlterableConfig
      Name string
      Value string?
  ValidateOnly bool
response
  ThrottleTimeMs int32
  Responses []AlterConfigsResourceResponse
    ErrorCode int16
    ErrorMessage string?
    ResourceType int8
    ResourceName string

AlterReplicaLogDirs 34 versions 0-2 flexible 2+
request
  Dirs []AlterReplicaLogDir
    Path string
    Topics []AlterReplicaLogDirTopic
      Name string
      Partitions []int32
response
  ThrottleTimeMs int32
  Results []AlterReplicaLogDirTopicResult
    TopicName string
    Partitions []AlterReplicaLogDirPartitionResult
      PartitionIndex int32
      ErrorCode int16

DescribeLogDirs 35 versions 0-5 flexible 2+
request
  Topics []DescribableLogDirTopic?
    Topic string
    Partitions []int32
  IncludeDetails bool 2+ tag 10000 ignorable
response
  ThrottleTimeMs int32
  ErrorCode int16 3+ ignorable
  Results []DescribeLogDirsResult
    ErrorCode int16
    LogDir string
    Topics []DescribeLogDirsTopic
      Name string
      Partitions []DescribeLogDirsPartition
        PartitionIndex int32
        PartitionSize int64
        OffsetLag int64
        IsFutureKey bool
        StartOffset int64 2+ tag 10000 ignorable = -1
        HighWatermark int64 2+ tag 10001 ignorable = -1
        EndOffset int64 2+ tag 10002 ignorable = -1
    TotalBytes int64 4+ ignorable = -1
    UsableBytes int64 4+ ignorable = -1
    DirectoryId uuid 2+ tag 10000 ignorable
    ErrorMessage string? 2+ tag 10001 ignorable = null
    OfflineTopics []DescribeLogDirsTopic 2+ tag 10002 ignorable
    IsCordoned bool 5+ ignorable

CreatePartitions 37 versions 0-3 flexible 2+
request
  Topics []CreatePartitionsTopic
    Name string
    Count int32
    Assignments []CreatePartitionsAssignment?
      BrokerIds []int32
  TimeoutMs int32
  ValidateOnly bool
response
  ThrottleTimeMs int32
  Results []CreatePartitionsTopicResult
    Name string
    ErrorCode int16
    ErrorMessage string? = null

IncrementalAlterConfigs 44 versions 0-1 flexible 1+
request
  Resources []AlterConfigsResource
    ResourceType int8
    ResourceName string
    Configs []AlterableConfig
      Name string
      ConfigOperation int8
      Value string?
  ValidateOnly bool
response
  ThrottleTimeMs int32
  Responses []AlterConfigsResourceResponse
    ErrorCode int16
    ErrorMessage string?
    ResourceType int8
    ResourceName string

AlterPartitionReassignments 45 versions 0-1 flexible 0+
request
  TimeoutMs int32 = 60000
  AllowReplicationFactorChange bool 1+ = true
  Topics []ReassignableTopic
    Name string
    Partitions []ReassignablePartition
      PartitionIndex int32
      Replicas []int32? = null
response
  ThrottleTimeMs int32
  AllowReplicationFactorChange bool 1+ ignorable = true
  ErrorCode int16
  ErrorMessage string?
  Responses []ReassignableTopicResponse
    Name string
    Partitions []ReassignablePartitionResponse
      PartitionIndex int32
      ErrorCode int16
      ErrorMessage string?

ListPartitionReassignments 46 versions 0-0 flexible 0+
request
  TimeoutMs int32 = 60000
  Topics []ListPartitionReassignmentsTopics? = null
    Name string
    PartitionIndexes []int32
response
  ThrottleTimeMs int32
  ErrorCode int16
  ErrorMessage string?
  Topics []OngoingTopicReassignment
    Name string
    Partitions []OngoingPartitionReassignment
      PartitionIndex int32
      Replicas []int32
      AddingReplicas []int32
      RemovingReplicas []int32
"""
