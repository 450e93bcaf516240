"""Requests and responses between brokers and controllers."""

TABLE = """
AlterPartition 56 versions 0-3 flexible 0+
request
  BrokerId int32
  BrokerEpoch int64 = -1
  Topics []TopicData
    TopicName string 0-1 ignorable
    TopicId uuid 2+ ignorable
    Partitions []PartitionData
      PartitionIndex int32
      LeaderEpoch int32
      NewIsr []int32 0-2
      NewIsrWithEpochs []BrokerState 3+
        BrokerId int32
        BrokerEpoch int64 = -1
      LeaderRecoveryState int8 1+
      PartitionEpoch int32
response
  ThrottleTimeMs int32
  ErrorCode int16
  Topics []TopicData
    TopicName string 0-1 ignorable
    TopicId uuid 2+ ignorable
    Partitions []PartitionData
      PartitionIndex int32
      ErrorCode int16
      LeaderId int32
      LeaderEpoch int32
      Isr []int32
      LeaderRecoveryState int8 1+ ignorable
      PartitionEpoch int32

Envelope 58 versions 0-0 flexible 0+
request
  RequestData bytes
  RequestPrincipal bytes?
  ClientHostAddress bytes
response
  ResponseData bytes? = null
  ErrorCode int16

BrokerRegistration 62 versions 0-4 flexible 0+
request
  BrokerId int32
  ClusterId string
  IncarnationId uuid
  Listeners []Listener
    Name string
    Host string
    Port uint16
    SecurityProtocol int16
  Features []Feature
    Name string
    MinSupportedVersion int16
    MaxSupportedVersion int16
  Rack string?
  IsMigratingZkBroker bool 1+
  LogDirs []uuid 2+ ignorable
  PreviousBrokerEpoch int64 3+ ignorable = -1
response
  ThrottleTimeMs int32
  ErrorCode int16
  BrokerEpoch int64 = -1

BrokerHeartbeat 63 versions 0-2 flexible 0+
request
  BrokerId int32
  BrokerEpoch int64 = -1
  CurrentMetadataOffset int64
  WantFence bool
  WantShutDown bool
  OfflineLogDirs []uuid 1+ tag 0
  CordonedLogDirs []uuid? 2+ tag 1 ignorable = null
response
  ThrottleTimeMs int32
  ErrorCode int16
  IsCaughtUp bool
  IsFenced bool = true
  ShouldShutDown bool

UnregisterBroker 64 versions 0-0 flexible 0+
request
  BrokerId int32
response
  ThrottleTimeMs int32
  ErrorCode int16
  ErrorMessage string?

AllocateProducerIds 67 versions 0-0 flexible 0+
request
  BrokerId int32
  BrokerEpoch int64 = -1
response
  ThrottleTimeMs int32
  ErrorCode int16
  ProducerIdStart int64
  ProducerIdLen int32

ControllerRegistration 70 versions 0-0 flexible 0+
request
  ControllerId int32
  IncarnationId uuid
  ZkMigrationReady bool
  Listeners []Listener
    Name string
    Host string
    Port uint16
    SecurityProtocol int16
  Features []Feature
    Name string
    MinSupportedVersion int16
    MaxSupportedVersion int16
response
  ThrottleTimeMs int32
  ErrorCode int16
  ErrorMessage string?

AssignReplicasToDirs 73 versions 0-0 flexible 0+
request
  BrokerId int32
  BrokerEpoch int64 = -1
  Directories []DirectoryData
    Id uuid
    Topics []TopicData
      TopicId uuid
      Partitions []PartitionData
        PartitionIndex int32
response
  ThrottleTimeMs int32
  ErrorCode int16
  Directories []DirectoryData
    Id uuid
    Topics []TopicData
      TopicId uuid
      Partitions []PartitionData
        PartitionIndex int32
        ErrorCode int16
"""
