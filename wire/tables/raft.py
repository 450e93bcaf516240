"""Requests and responses of the quorum: votes, epochs, snapshots, voters."""

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
"""
