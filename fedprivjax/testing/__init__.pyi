from .contract import PROPERTIES as PROPERTIES
from .contract import Property as Property
from .contract import Report as Report
from .contract import check_protocol as check_protocol
from .trial import Trial as Trial
