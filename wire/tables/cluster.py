"""Requests and responses for discovering the cluster, and for telemetry."""

TABLE = """
Metadata 3 versions 0-13 flexible 9+
request
  Topics []MetadataRequestTopic?1+
    TopicId uuid 10+ ignorable
    Name string?10+
  AllowAutoTopicCreation bool 4+ = true
  IncludeClusterAuthorizedOperations bool 8-10
  IncludeTopicAuthorizedOperations bool 8+
response
  ThrottleTimeMs int32 3+ ignorable
  Brokers []MetadataResponseBroker
    NodeId int32
    Host string
    Port int32
    Rack string? 1+ ignorable = null
  ClusterId string? 2+ ignorable = null
  ControllerId int32 1+ ignorable = -1
  Topics []MetadataResponseTopic
    ErrorCode int16
    Name string?12+
    TopicId uuid 10+ ignorable
    IsInternal bool 1+ ignorable
    Partitions []MetadataResponsePartition
      ErrorCode int16
      PartitionIndex int32
      LeaderId int32
      LeaderEpoch int32 7+ ignorable = -1
      ReplicaNodes []int32
      IsrNodes []int32
      OfflineReplicas []int32 5+ ignorable
    TopicAuthorizedOperations int32 8+ = -2147483648
  ClusterAuthorizedOperations int32 8-10 = -2147483648
  ErrorCode int16 13+ ignorable

FindCoordinator 10 versions 0-6 flexible 3+
request
  Key string 0-3
  KeyType int8 1+
  CoordinatorKeys []string 4+
response
  ThrottleTimeMs int32 1+ ignorable
  ErrorCode int16 0-3
  ErrorMessage string? 1-3 ignorable
  NodeId int32 0-3
  Host string 0-3
  Port int32 0-3
  Coordinators []Coordinator 4+
    Key string
    NodeId int32
    Host string
    Port int32
    ErrorCode int16
    ErrorMessage string? ignorable

ApiVersions 18 versions 0-4 flexible 3+
request
  ClientSoftwareName string 3+ ignorable
  ClientSoftwareVersion string 3+ ignorable
response
  ErrorCode int16
  ApiKeys []ApiVersion
    ApiKey int16
    MinVersion int16
    MaxVersion int16
  ThrottleTimeMs int32 1+ ignorable
  SupportedFeatures []SupportedFeatureKey 3+ tag 0 ignorable
    Name string
    MinVersion int16
    MaxVersion int16
  FinalizedFeaturesEpoch int64 3+ tag 1 ignorable = -1
  FinalizedFeatures []FinalizedFeatureKey 3+ tag 2 ignorable
    Name string
    MaxVersionLevel int16
    MinVersionLevel int16
  ZkMigrationReady bool 3+ tag 3 ignorable

ElectLeaders 43 versions 0-2 flexible 2+
request
  ElectionType int8 1+
  TopicPartitions []TopicPartitions?
    Topic string
    Partitions []int32
  TimeoutMs int32 = 60000
response
  ThrottleTimeMs int32
  ErrorCode int16 1+
  ReplicaElectionResults []ReplicaElectionResult
    Topic string
    PartitionResult []PartitionResult
      PartitionId int32
      ErrorCode int16
      ErrorMessage string?

DescribeQuorum 55 versions 0-2 flexible 0+
request
  Topics []TopicData
    TopicName string
    Partitions []PartitionData
      PartitionIndex int32
response
  ErrorCode int16
  ErrorMessage string? 2+ ignorable
  Topics []TopicData
    TopicName string
    Partitions []PartitionData
      PartitionIndex int32
      ErrorCode int16
      ErrorMessage string? 2+ ignorable
      LeaderId int32
      LeaderEpoch int32
      HighWatermark int64
      CurrentVoters []ReplicaState
        ReplicaId int32
        ReplicaDirectoryId uuid 2+
        LogEndOffset int64
        LastFetchTimestamp int64 1+ ignorable = -1
        LastCaughtUpTimestamp int64 1+ ignorable = -1
      Observers []ReplicaState
  Nodes []Node 2+
    NodeId int32
    Listeners []Listener
      Name string
      Host string
      Port uint16

UpdateFeatures 57 versions 0-2 flexible 0+
request
  timeoutMs int32 = 60000
  FeatureUpdates []FeatureUpdateKey
    Feature string
    MaxVersionLevel int16
    AllowDowngrade bool 0-0
    UpgradeType int8 1+ = 1
  ValidateOnly bool 1+
response
  ThrottleTimeMs int32
  ErrorCode int16
  ErrorMessage string?
  Results []UpdatableFeatureResult 0-1 ignorable
    Feature string
    ErrorCode int16
    ErrorMessage string?

DescribeCluster 60 versions 0-2 flexible 0+
request
  IncludeClusterAuthorizedOperations bool
  EndpointType int8 1+ = 1
  IncludeFencedBrokers bool 2+ ignorable
response
  ThrottleTimeMs int32
  ErrorCode int16
  ErrorMessage string? = null
  EndpointType int8 1+ = 1
  ClusterId string
  ControllerId int32 = -1
  Brokers []DescribeClusterBroker
    BrokerId int32
    Host string
    Port int32
    Rack string? = null
    IsFenced bool 2+ ignorable
  ClusterAuthorizedOperations int32 = -2147483648

ListConfigResources 74 versions 0-1 flexible 0+
request
  ResourceTypes []int8 1+
response
  ThrottleTimeMs int32
  ErrorCode int16
  ConfigResources []ConfigResource
    ResourceName string
    ResourceType int8 1+ ignorable = 16

DescribeTopicPartitions 75 versions 0-0 flexible 0+
request
  Topics []TopicRequest
    Name string
  ResponsePartitionLimit int32 = 2000
  Cursor Cursor? = null
    TopicName string
    PartitionIndex int32
response
  ThrottleTimeMs int32 ignorable
  Topics []DescribeTopicPartitionsResponseTopic
    ErrorCode int16
    Name string?
    TopicId uuid ignorable
    IsInternal bool ignorable
    Partitions []DescribeTopicPartitionsResponsePartition
      ErrorCode int16
      PartitionIndex int32
      LeaderId int32
      LeaderEpoch int32 ignorable = -1
      ReplicaNodes []int32
      IsrNodes []int32
      EligibleLeaderReplicas []int32? = null
      LastKnownElr []int32? = null
      OfflineReplicas []int32 ignorable
    TopicAuthorizedOperations int32 = -2147483648
  NextCursor Cursor? = null
    TopicName string
    PartitionIndex int32
"""
