"""The server's defaults for topic options, from the configuration to what the metadata plane fills in."""

from shardsrv.config import Config
from shardsrv.plane.metadata.options_catalog import TopicDefaults
from shardsrv.wire.constants import Compression, Durability


def topic_defaults(config: Config) -> TopicDefaults:
    """What a topic option is when the client did not send it."""
    topic = config.topic
    return TopicDefaults(
        compression_algorithm=Compression[topic.compression_algorithm.upper()],
        message_expiry=topic.message_expiry,
        max_topic_size=topic.max_size,
        segment_size=topic.segment_size,
        durability=Durability[topic.durability.upper()],
        consumer_offset_durability=Durability[topic.consumer_offset_durability.upper()],
        messages_required_to_save=topic.messages_required_to_save,
        size_of_messages_required_to_save=topic.size_of_messages_required_to_save,
        preallocate_segments=topic.preallocate_segments,
    )
