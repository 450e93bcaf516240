"""Requests and responses between nodes: votes, snapshots and voters of the quorum, and of brokers at
controllers."""

TABLE = """
Vote 52 versions 0-2 flexible 0+
request
  ClusterId string? = null
  VoterId int32 1+ ignorable = -1
  Topics []TopicData
    TopicName string
    Partitions []PartitionData
      PartitionIndex int32
      ReplicaEpoch int32
      ReplicaId int32
      ReplicaDirectoryId uuid 1+ ignorable
      VoterDirectoryId uuid 1+ ignorable
      LastOffsetEpoch int32
      LastOffset int64
      PreVote bool 2+
response
  ErrorCode int16
  Topics []TopicData
    TopicName string
    Partitions []PartitionData
      PartitionIndex int32
      ErrorCode int16
      LeaderId int32
      LeaderEpoch int32
      VoteGranted bool
  NodeEndpoints []NodeEndpoint 1+ tag 0
    NodeId int32
    Host string
    Port uint16

BeginQuorumEpoch 53 versions 0-1 flexible 1+
request
  ClusterId string? = null
  VoterId int32 1+ ignorable = -1
  Topics []TopicData
    TopicName string
    Partitions []PartitionData
      PartitionIndex int32
      VoterDirectoryId uuid 1+ ignorable
      LeaderId int32
      LeaderEpoch int32
  LeaderEndpoints []LeaderEndpoint 1+ ignorable
    Name string
    Host string
    Port uint16
response
  ErrorCode int16
  Topics []TopicData
    TopicName string
    Partitions []PartitionData
      PartitionIndex int32
      ErrorCode int16
      LeaderId int32
      LeaderEpoch int32
  NodeEndpoints []NodeEndpoint 1+ tag 0
    NodeId int32
    Host string
    Port uint16

EndQuorumEpoch 54 versions 0-1 flexible 1+
request
  ClusterId string? = null
  Topics []TopicData
    TopicName string
    Partitions []PartitionData
      PartitionIndex int32
      LeaderId int32
      LeaderEpoch int32
      PreferredSuccessors []int32 0-0 ignorable
      PreferredCandidates []ReplicaInfo 1+ ignorable
        CandidateId int32
        CandidateDirectoryId uuid
  LeaderEndpoints []LeaderEndpoint 1+ ignorable
    Name string
    Host string
    Port uint16
response
  ErrorCode int16
  Topics []TopicData
    TopicName string
    Partitions []PartitionData
      PartitionIndex int32
      ErrorCode int16
      LeaderId int32
      LeaderEpoch int32
  NodeEndpoints []NodeEndpoint 1+ tag 0
    NodeId int32
    Host string
    Port uint16

FetchSnapshot 59 versions 0-1 flexible 0+
request
  ClusterId string? tag 0 = null
  ReplicaId int32 = -1
  MaxBytes int32 = 2147483647
  Topics []TopicSnapshot
    Name string
    Partitions []PartitionSnapshot
      Partition int32
      CurrentLeaderEpoch int32
      SnapshotId SnapshotId
        EndOffset int64
        Epoch int32
      Position int64
      ReplicaDirectoryId uuid 1+ tag 0 ignorable
response
  ThrottleTimeMs int32 ignorable
  ErrorCode int16
  Topics []TopicSnapshot
    Name string
    Partitions []PartitionSnapshot
      Index int32
      ErrorCode int16
      SnapshotId SnapshotId
        EndOffset int64
        Epoch int32
      CurrentLeader LeaderIdAndEpoch tag 0
        LeaderId int32
        LeaderEpoch int32
      Size int64
      Position int64
      UnalignedRecords records
  NodeEndpoints []NodeEndpoint 1+ tag 0
    NodeId int32
    Host string
    Port uint16

AddRaftVoter 80 versions 0-1 flexible 0+
request
  ClusterId string?
  TimeoutMs int32
  VoterId int32
  VoterDirectoryId uuid
  Listeners []Listener
    Name string
    Host string
    Port uint16
  AckWhenCommitted bool 1+ = true
response
  ThrottleTimeMs int32
  ErrorCode int16
  ErrorMessage string? ignorable

RemoveRaftVoter 81 versions 0-0 flexible 0+
request
  ClusterId string?
  VoterId int32
  VoterDirectoryId uuid
response
  ThrottleTimeMs int32
  ErrorCode int16
  ErrorMessage string? ignorable

UpdateRaftVoter 82 versions 0-0 flexible 0+
request
  ClusterId string?
  CurrentLeaderEpoch int32
  VoterId int32
  VoterDirectoryId uuid
  Listeners []Listener
    Name string
    Host string
    Port uint16
  KRaftVersionFeature KRaftVersionFeature
    MinSupportedVersion int16
    MaxSupportedVersion int16
response
  ThrottleTimeMs int32
  ErrorCode int16
  CurrentLeader CurrentLeader tag 0
    LeaderId int32 = -1
    LeaderEpoch int32 = -1
    Host string
    Port int32

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
